"""The folders of runs: what lies where, who may write, and what is there."""
