"""Sweeps: many runs of one configuration with other seeds and settings, chosen by Optuna and shared by several hosts.

sweep_config    the settings of a sweep, from its YAML   dimensions    the values from which a setting is chosen
directory       the files of a sweep, and its lock        study         the trials, in Optuna's storage
trial           one trial: its runs as child processes    sweeping      trials one after another, N at a time
progress        the display in the terminal               results       the table and the best configuration
"""
