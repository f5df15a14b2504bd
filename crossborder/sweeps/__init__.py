"""Sweeps: many runs of one configuration with other seeds and settings, chosen by Optuna and shared by several hosts.

sweep_config    the settings of a sweep, from its YAML   dimensions     the values from which a setting is chosen
directory       the files of a sweep, and its lock       study          the trials, in Optuna's storage
trial_runner    one trial: its runs as child processes   sweeping       trials one after another, N at a time
board           the display in the terminal              results        the table and the best configuration

Suites: agents compared in the same tasks, each by a sweep over seeds.

suite_config    the settings of a suite, from its YAML   suite_running  the sweeps of a suite, one after another
suite_results   a line for each run, and the table       suite_picture  the curves, means and profiles
"""
