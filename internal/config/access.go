package config

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/pkg/auth"
)

// Access configures the callers and their rate limits.
type Access struct {
	AuthFile       string
	OIDCIssuer     string
	OIDCAudience   string
	OIDCRolesClaim string
	TLSCert        string
	TLSKey         string
	TLSClientCA    string
	// CallerLimit and TenantLimit have a Rate of 0 if there is no limit.
	CallerLimit auth.LimitConfig
	TenantLimit auth.LimitConfig
	// AuditLog is [AuditStderr], [AuditOff], or a file.
	AuditLog string
}

// The destinations of the audit log other than a file.
const (
	AuditStderr = "stderr"
	AuditOff    = "off"
)

// Configured reports whether callers need a credential.
func (a *Access) Configured() bool { return a.AuthFile != "" || a.OIDCIssuer != "" }

// admitting returns the settings of callers and their limits.
func admitting() []setting {
	text := func(variable, help string, of func(*Access) *string) setting {
		return setting{variable, "", help, func(c *Config, s string) error {
			*of(&c.Access) = s
			return nil
		}}
	}
	limit := func(variable, help string, of func(*Access) *auth.LimitConfig) setting {
		return setting{variable, "0", help, func(c *Config, s string) error { return rateLimit(of(&c.Access), s) }}
	}
	return []setting{
		text("LUCIUS_AUTH_FILE", "file of the callers and the hashes of their tokens", func(a *Access) *string { return &a.AuthFile }),
		{"LUCIUS_OIDC_ISSUER", "", "URL of the OpenID Connect issuer whose JWTs are taken", func(c *Config, s string) error {
			c.OIDCIssuer = s
			if s == "" {
				return nil
			}
			return auth.CheckIssuerURL(s)
		}},
		text("LUCIUS_OIDC_AUDIENCE", "what JWTs must have in aud", func(a *Access) *string { return &a.OIDCAudience }),
		{"LUCIUS_OIDC_ROLES_CLAIM", auth.DefaultRolesClaim, "claim of a JWT that lists roles", func(c *Config, s string) error {
			return required(&c.OIDCRolesClaim, s)
		}},
		text("LUCIUS_TLS_CERT", "the server's certificate with its chain, in PEM", func(a *Access) *string { return &a.TLSCert }),
		text("LUCIUS_TLS_KEY", "the certificate's key, in PEM", func(a *Access) *string { return &a.TLSKey }),
		text("LUCIUS_TLS_CLIENT_CA", "authorities of client certificates, in PEM", func(a *Access) *string { return &a.TLSClientCA }),
		limit("LUCIUS_RATE_LIMIT_CALLER", "requests a second of each caller, as RATE or RATE:BURST; 0 is no limit",
			func(a *Access) *auth.LimitConfig { return &a.CallerLimit }),
		limit("LUCIUS_RATE_LIMIT_TENANT", "requests a second for each tenant, as RATE or RATE:BURST; 0 is no limit",
			func(a *Access) *auth.LimitConfig { return &a.TenantLimit }),
		{"LUCIUS_AUDIT_LOG", AuditStderr, "where the audit log goes: stderr, off, or a file", func(c *Config, s string) error {
			return required(&c.AuditLog, s)
		}},
	}
}

// address takes host:port.
func address(to *string, s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("must be host:port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("has port %q, must be a number from 0 to 65535", port)
	}
	*to = s
	return nil
}

// maxRate is the highest limit, in requests a second, that still has an effect.
const maxRate = 1e6

// rateLimit takes RATE or RATE:BURST.
func rateLimit(to *auth.LimitConfig, s string) error {
	rate, burst, bursts := strings.Cut(s, ":")
	var limit auth.LimitConfig
	var err error
	if limit.Rate, err = strconv.ParseFloat(rate, 64); err != nil || !(limit.Rate >= 0 && limit.Rate <= maxRate) {
		return fmt.Errorf("must be a number of requests a second from 0 to 1000000, or that, a colon and the burst")
	}
	if bursts {
		if err := integer(&limit.Burst, burst, 1, maxRate); err != nil {
			return fmt.Errorf("has the burst %q, which %w", burst, err)
		}
	}
	*to = limit
	return nil
}

// check compares the settings of access with each other and with the server's
// address.
func (a *Access) check(listen string) []error {
	var problems []error
	if err := auth.CheckListen(listen, a.Configured()); err != nil {
		problems = append(problems, fmt.Errorf("LUCIUS_LISTEN_ADDR is %q, %w: set LUCIUS_AUTH_FILE or LUCIUS_OIDC_ISSUER", listen, err))
	}
	for _, check := range []struct {
		wrong   bool
		message string
	}{
		{
			a.OIDCIssuer != "" && a.OIDCAudience == "",
			"LUCIUS_OIDC_ISSUER needs LUCIUS_OIDC_AUDIENCE: otherwise its tokens for other services would be accepted",
		},
		{a.OIDCIssuer == "" && a.OIDCAudience != "", "LUCIUS_OIDC_AUDIENCE needs LUCIUS_OIDC_ISSUER"},
		{(a.TLSCert == "") != (a.TLSKey == ""), "LUCIUS_TLS_CERT and LUCIUS_TLS_KEY are needed together"},
		{
			a.TLSClientCA != "" && a.TLSCert == "",
			"LUCIUS_TLS_CLIENT_CA needs LUCIUS_TLS_CERT and LUCIUS_TLS_KEY: clients show certificates only over TLS",
		},
		{
			a.TLSClientCA != "" && a.AuthFile == "",
			"LUCIUS_TLS_CLIENT_CA needs LUCIUS_AUTH_FILE, which says who the certificates stand for",
		},
	} {
		if check.wrong {
			problems = append(problems, errors.New(check.message))
		}
	}
	return problems
}
