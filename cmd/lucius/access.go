package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/auth"
)

// admission is who may call, and what is written down of it.
type admission struct {
	file          *auth.File         // nil where there is none
	certificates  *auth.Certificates // nil without TLS
	authenticator *auth.Authenticator
	callers       *auth.Limiter // nil limits nothing
	tenants       *auth.Limiter
	audit         *auth.Audit // nil where it is off
	auditFile     io.Closer
}

// admit opens what the configuration says of access. Close the admission.
func admit(ctx context.Context, cfg *config.Config, log *slog.Logger) (*admission, error) {
	a := &admission{auditFile: io.NopCloser(nil)}
	var credentials auth.Config
	var err error
	if cfg.AuthFile != "" {
		if a.file, err = auth.OpenFile(cfg.AuthFile); err != nil {
			return nil, fmt.Errorf("LUCIUS_AUTH_FILE %s: %w", cfg.AuthFile, err)
		}
		credentials.File = a.file
	}
	if cfg.OIDCIssuer != "" {
		credentials.Issuer, err = auth.NewIssuer(auth.IssuerConfig{
			URL: cfg.OIDCIssuer, Audience: cfg.OIDCAudience, RolesClaim: cfg.OIDCRolesClaim,
		})
		if err != nil {
			return nil, fmt.Errorf("LUCIUS_OIDC_ISSUER %s: %w", cfg.OIDCIssuer, err)
		}
	}
	a.authenticator = auth.New(credentials)
	if cfg.TLSCert != "" {
		a.certificates, err = auth.OpenCertificates(auth.CertificatesConfig{
			CertFile: cfg.TLSCert, KeyFile: cfg.TLSKey, ClientCAFile: cfg.TLSClientCA,
		})
		if err != nil {
			return nil, fmt.Errorf("LUCIUS_TLS_CERT, LUCIUS_TLS_KEY, LUCIUS_TLS_CLIENT_CA: %w", err)
		}
	}
	if err := a.limit(cfg); err != nil {
		return nil, err
	}
	a.warnOfPlainText(ctx, cfg, log)
	return a, a.openAudit(cfg.AuditLog)
}

// limit makes the limiters that are asked for.
func (a *admission) limit(cfg *config.Config) error {
	for _, limit := range []struct {
		variable string
		config   auth.LimitConfig
		to       **auth.Limiter
	}{
		{"LUCIUS_RATE_LIMIT_CALLER", cfg.CallerLimit, &a.callers},
		{"LUCIUS_RATE_LIMIT_TENANT", cfg.TenantLimit, &a.tenants},
	} {
		if limit.config.Rate == 0 {
			continue
		}
		made, err := auth.NewLimiter(limit.config)
		if err != nil {
			return fmt.Errorf("%s: %w", limit.variable, err)
		}
		*limit.to = made
	}
	return nil
}

// openAudit opens the audit log. Its records are lines of JSON, whatever the
// server's log is like and however little is written there.
func (a *admission) openAudit(to string) error {
	var out io.Writer = os.Stderr
	switch to {
	case config.AuditOff:
		return nil
	case config.AuditStderr:
	default:
		file, err := os.OpenFile(to, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // An operator names it.
		if err != nil {
			return fmt.Errorf("LUCIUS_AUDIT_LOG %s: %w", to, err)
		}
		out, a.auditFile = file, file
	}
	a.audit = auth.NewAudit(slog.New(slog.NewJSONHandler(out, nil)))
	return nil
}

// warnOfPlainText says that whoever is on the way can read tokens.
func (a *admission) warnOfPlainText(ctx context.Context, cfg *config.Config, log *slog.Logger) {
	if a.certificates == nil && auth.CheckListen(cfg.ListenAddr, false) != nil {
		log.WarnContext(ctx, "tokens are taken without TLS: set LUCIUS_TLS_CERT, or have a proxy on this host speak it",
			"listen_addr", cfg.ListenAddr)
	}
}

// close closes the audit log.
func (a *admission) close() error {
	if err := a.auditFile.Close(); err != nil {
		return fmt.Errorf("close the audit log: %w", err)
	}
	return nil
}

// scheme is what the server's address begins with.
func (a *admission) scheme() string {
	if a.certificates != nil {
		return "https"
	}
	return "http"
}

// serve serves on the listener, over TLS where there is a certificate.
func (a *admission) serve(server *http.Server, listener net.Listener) error {
	if a.certificates == nil {
		return server.Serve(listener)
	}
	server.TLSConfig = a.certificates.TLSConfig()
	return server.ServeTLS(listener, "", "")
}
