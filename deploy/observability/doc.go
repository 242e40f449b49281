// Package observability has alerts.yaml, rules for Prometheus, and dashboard.json, a
// dashboard for Grafana. Its tests evaluate both with Prometheus' engine on what a server
// measures.
package observability
