"""The Helm chart, rendered by a real Helm and held against Kubernetes' own schemas."""
