"""The statistics, one file each. All take arrays [..., N] and answer with arrays [...]: leading axes are runs."""
