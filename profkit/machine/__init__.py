"""The abilities of this machine: its checks and its measured ceilings."""
