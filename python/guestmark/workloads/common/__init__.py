"""What several workloads share."""
