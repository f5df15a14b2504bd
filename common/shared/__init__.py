"""Memory that several processes map: files, words of 8 bytes, and the slots of models."""
