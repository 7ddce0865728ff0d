"""TensorBoard dashboard of a run: histograms, texts, and a layout of charts."""
