"""Search for the best of many cells with few trials: screening, racing, confirming. Pure functions of the trials.

The race follows Maron and Moore ("Hoeffding races", 1994) and irace (López-Ibáñez et al. 2016): all candidates are
measured in the same blocks, and after each block those that are certainly worse are dropped. Two things differ. Blocks
are paired trials on fresh machines, so candidates are compared by their differences within a block. And candidates are
dropped only if they are worse beyond the margin that matters, with an error that is spread over all looks. Successive
halving (Hyperband, Optuna's pruners) drops a fixed share at every rung whether or not it is worse. That saves more if
only one good configuration is wanted; here the answer is the set of all that are best.
"""
