"""The replay: mapped files that ingest fills with items and from which the trainer draws batches.

    memory     the files, and the order of a write            writer     stores batches, in ingest
    reader     gathers rows while they may be overwritten     recovery   what is whole after a power cut
    layout, ring, batch_log                                   parts of the files
    shared_buffer, uniform, prioritized, sum_tree             which items a batch has
    limiter, ratio                                            the replay ratio: the decision, and the ratio in force
    value_rules, screening, quarantine                        values that may not be stored, and who sent them
    local_sink, ages, inspection                              items of this process, their age, a look at all of it

The trainer is the training process, whichever way it trains.
"""
