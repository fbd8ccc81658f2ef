"""Task: what is learned, as a function of (w, psi, batch, noise), and its gradients."""
