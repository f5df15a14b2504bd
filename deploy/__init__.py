"""Kubernetes manifests and systemd units."""
