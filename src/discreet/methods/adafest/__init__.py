"""DP-AdaFEST (Ghazi et al. 2023): noise only on the rows of large tables that enough records touch."""
