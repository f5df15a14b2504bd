"""The replay: mapped files that ingest fills with rows and from which the trainer draws batches.

    memory     the files, and the order of a write            writer     stores batches, in ingest
    reader     gathers rows while they may be overwritten     recovery   finds whole rows after a power cut
    linking    links the rows of a batch in their lanes       links      keeps these links beside the columns
    layout, ring, batch_log                                   parts of the files
    view                                                      how a batch is assembled from rows: the interface
    shared_buffer, uniform, prioritized, sum_tree             the choice of a batch's rows
    queue, arrivals, sources                                  each row once; batches from several replays
    limiter, ratio                                            the replay ratio: the decision, and the ratio in force
    value_rules, screening, quarantine                        values that may not be stored, and who sent them
    local_sink, ages, inspection                              this process's rows, the age of rows, a look at a replay

*The trainer* means the training process, in each of the three ways to train.
"""
