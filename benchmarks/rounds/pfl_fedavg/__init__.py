"""FedAvg by apple's pfl as it ships."""
