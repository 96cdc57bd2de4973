"""What this machine can do: its checks and its measured ceilings."""
