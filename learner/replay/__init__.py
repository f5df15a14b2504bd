"""The replay: mapped files that ingest fills with rows and from which the trainer draws batches.

    memory, ring, links, batch_log          the files, and the order of a write
    writer, linking                         stores batches, in ingest, and links their rows in their lanes
    reader, view                            gathers rows while they may be overwritten, as a view assembles them
    recovery, copying                       finds whole rows after a power cut; copies rows to another replay
    shared_buffer, uniform, prioritized     the choice of a batch's rows
    queue, mixed_replay, interventions      each row once; batches from several replays, and from interventions
    limiter, ratio, ages                    the replay ratio: the decision, and the ratio in force; the age of rows
    value_rules, screening, quarantine      values that may not be stored, and who sent them

*The trainer* means the training process, in each of the three ways to train.
"""
