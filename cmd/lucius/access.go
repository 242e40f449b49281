package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/console"
	"github.com/lucius-project/lucius/pkg/auth"
)

// access decides who may call and how often, and keeps the audit log.
type access struct {
	tokens           *auth.File         // nil without a token file
	certificates     *auth.Certificates // nil without TLS
	authenticator    *auth.Authenticator
	signIn           console.Issuer // nil without LUCIUS_OIDC_CLIENT_ID
	callers, tenants *auth.Limiter  // nil without a limit
	audit            *auth.Audit
	auditFile        io.Closer
}

// openAccess reads the configured files. Close the result.
func openAccess(ctx context.Context, cfg *config.Config, log *slog.Logger) (*access, error) {
	a := &access{auditFile: io.NopCloser(nil)}
	var credentials auth.Config
	var err error
	if cfg.AuthFile != "" {
		if a.tokens, err = auth.OpenFile(cfg.AuthFile); err != nil {
			return nil, fmt.Errorf("LUCIUS_AUTH_FILE %s: %w", cfg.AuthFile, err)
		}
		credentials.File = a.tokens
		warnIfExposed(ctx, log, "LUCIUS_AUTH_FILE", cfg.AuthFile)
	}
	if cfg.OIDCIssuer != "" {
		credentials.Issuer, err = auth.NewIssuer(auth.IssuerConfig{
			URL: cfg.OIDCIssuer, Audience: cfg.OIDCAudience, RolesClaim: cfg.OIDCRolesClaim,
		})
		if err != nil {
			return nil, fmt.Errorf("LUCIUS_OIDC_ISSUER %s: %w", cfg.OIDCIssuer, err)
		}
		if cfg.OIDCClientID != "" {
			a.signIn, err = auth.NewSignIn(auth.SignInConfig{
				Issuer: credentials.Issuer, ClientID: cfg.OIDCClientID, SecretFile: cfg.OIDCClientSecretFile, Scopes: cfg.OIDCScopes,
			})
			if err != nil {
				return nil, fmt.Errorf("LUCIUS_OIDC_CLIENT_ID: %w", err)
			}
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
		warnIfExposed(ctx, log, "LUCIUS_TLS_KEY", cfg.TLSKey)
	} else if auth.CheckListen(cfg.ListenAddr, false) != nil {
		log.WarnContext(ctx, "tokens are accepted without TLS: set LUCIUS_TLS_CERT, or terminate TLS in a proxy on this host",
			"listen_addr", cfg.ListenAddr)
	}
	a.callers, a.tenants = auth.NewLimiter(cfg.CallerLimit), auth.NewLimiter(cfg.TenantLimit)
	return a, a.openAudit(cfg.AuditLog)
}

// warnIfExposed warns of a file or folder that users who are neither its owner nor in its
// group can read or change. Windows has no such permissions.
func warnIfExposed(ctx context.Context, log *slog.Logger, setting, path string) {
	info, err := os.Stat(path)
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0 {
		log.WarnContext(ctx, "other users of this host have access: run chmod o-rwx on the path",
			"setting", setting, "path", path, "mode", info.Mode().Perm().String())
	}
}

// openAudit opens the audit log. Its records are lines of JSON, independent of the
// format and level of the server's log.
func (a *access) openAudit(destination string) error {
	var out io.Writer = os.Stderr
	switch destination {
	case config.AuditOff:
		a.audit = auth.NewAudit(nil)
		return nil
	case config.AuditStderr:
	default:
		file, err := os.OpenFile(destination, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("LUCIUS_AUDIT_LOG %s: %w", destination, err)
		}
		out, a.auditFile = file, file
	}
	a.audit = auth.NewAudit(slog.New(slog.NewJSONHandler(out, nil)))
	return nil
}

// close closes the audit log.
func (a *access) close() error {
	if err := a.auditFile.Close(); err != nil {
		return fmt.Errorf("close the audit log: %w", err)
	}
	return nil
}
