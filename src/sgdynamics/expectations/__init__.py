"""Gaussian expectations of losses: closed forms, series, quadrature and sampling, with errors.

`choice.expectation_of` is the one place that decides which class computes the expectations of a
problem. It takes the first line of this index that applies:

=================  ==========================================  ===================================
class              losses and samples                          error estimate
=================  ==========================================  ===================================
`UserExpectation`  a user's own `sgd.Expectation`              its method `error`; 0 by default
`ContextSums`      contexts, each with a loss of its own       largest error of the contexts
`NoisyInputs`      noise on the inputs of the students         that of the expectation without it
`DropoutSums`      dropout of students (up to 10 units)        that of the expectation without it
`StudentSums`      several students in one problem, with       largest error of the students
                   independent gradients
`Clusters`         ReLU networks on Gaussian mixtures,         a second quadrature (up to 4 units),
                   logistic loss                               replicates (more units)
`ClosedPairs`      networks that learn from networks,          rounding (closed forms), tail of the
                   squared or correlation loss                 Mehler series, two resolutions
`SignalGrids`      networks that learn any function of the     two resolutions of the grid
                   signals, or binary labels; squared or
                   correlation loss
`LabelSums`        networks with a law of binary labels,       replicates of scrambled Sobol points
                   any other loss
`LowRankMoments`   frozen networks with an update of low rank  that of the network of the units
`ClassGrids`       softmax losses of two or three classes      a second grid, shifted, with fewer
                   whose label is the largest signal, one or   nodes in each sector
                   two units
`SignalPanels`     networks of one or two units with biases    a second grid, shifted, with fewer
                   whose label jumps at values of one signal   nodes in each panel
`FewFields`        smooth losses of up to four fields,         a second grid, shifted by half a
                   rules that jump at 0                        spacing
`SobolAverages`    all other losses and rules                  replicates of scrambled Sobol points
=================  ==========================================  ===================================

`docs/expectations.md` has the same index with the cost of each class. `networks.Networks` is the
common part of `ClosedPairs` and `SignalGrids`; `closed_forms` contains the closed expectations of
families of activations, one file per family.
"""
