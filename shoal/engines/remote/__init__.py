"""What engines with workers of their own share: cutting an order up, describing a share, order."""
