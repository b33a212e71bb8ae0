"""Finding the best of many cells with few trials: screening, racing, confirming. Pure functions of the trials.

Racing is that of Maron and Moore ("Hoeffding races", 1994) and of irace (López-Ibáñez et al. 2016): all candidates
are measured in the same blocks, and those that are worse for sure are dropped after each. Two things differ. Blocks are
paired trials on fresh machines, so candidates are compared by their differences within a block. And what is sure is
sure at every look (the error is spread over all looks), and beyond the margin that matters. Successive halving
(Hyperband, Optuna's pruners) drops a fixed share at every rung whether or not it is worse, which saves more where only
one good configuration is wanted; here the answer is the set of all that are best.
"""
