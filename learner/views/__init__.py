"""Views: how the batches that agents draw are assembled from the rows that actors recorded.

    transitions   one-step and n-step transitions            sequences    consecutive steps, for recurrent agents
    hindsight     transitions towards goals reached later     items        self-contained items, as they are
    episodes      the rows ahead within an episode            stacks       the rows behind, for stacks of frames
    positions     how far a row is in its episode          columns      which columns of rows a batch has
    path_view     views that follow the rows ahead        staleness    weights of draws by the age of their policy

Your own view derives from ``learner.replay.view:View``; ``replay.view.target`` names it.
"""
