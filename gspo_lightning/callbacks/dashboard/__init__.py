"""What TensorBoard shows of a run: histograms, texts, and a layout of its own."""
