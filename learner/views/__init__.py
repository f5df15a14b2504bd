"""Views: how the batches that agents draw are assembled from the rows that actors recorded.

    transitions   one-step and n-step transitions             sequences    consecutive steps, for recurrent agents
    hindsight     transitions towards goals reached later     rollouts     the steps of a lane between two opt steps
    items         self-contained items, as they are           paths        the rows ahead, and stacks of the rows behind
    positions     where a row is in its episode or rollout    columns      which columns of rows a batch has
    staleness     weights of draws by the age of their policy

Your own view derives from ``learner.replay.view:View``; ``replay.view.target`` names it.
"""
