"""Other trainers, driven through their own code on the work of :mod:`benchmarks.workloads`."""
