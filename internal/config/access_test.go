package config_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
)

func TestLoad_Access(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, map[string]string{
		"LUCIUS_LISTEN_ADDR": "0.0.0.0:443", "LUCIUS_AUTH_FILE": "tokens.yaml",
		"LUCIUS_OIDC_ISSUER": "https://issuer.example", "LUCIUS_OIDC_AUDIENCE": "lucius", "LUCIUS_OIDC_ROLES_CLAIM": "roles",
		"LUCIUS_OIDC_CLIENT_ID": "console", "LUCIUS_OIDC_CLIENT_SECRET_FILE": "secret", "LUCIUS_OIDC_SCOPES": "openid api",
		"LUCIUS_PUBLIC_URL": "https://lucius.example/", "LUCIUS_ENVIRONMENT": " production : red",
		"LUCIUS_TLS_CERT": "cert.pem", "LUCIUS_TLS_KEY": "key.pem", "LUCIUS_TLS_CLIENT_CA": "ca.pem",
		"LUCIUS_RATE_LIMIT_CALLER": "0.5", "LUCIUS_RATE_LIMIT_TENANT": "100:250", "LUCIUS_AUDIT_LOG": "audit.log",
	})
	musttest.NoError(t, err)
	want := config.Access{
		AuthFile: "tokens.yaml", OIDCIssuer: "https://issuer.example", OIDCAudience: "lucius", OIDCRolesClaim: "roles",
		OIDCClientID: "console", OIDCClientSecretFile: "secret", OIDCScopes: "openid api", PublicURL: "https://lucius.example",
		TLSCert: "cert.pem", TLSKey: "key.pem", TLSClientCA: "ca.pem",
		Environment: config.Environment{Name: "production", Colour: "red"},
		CallerLimit: auth.LimitConfig{Rate: 0.5}, TenantLimit: auth.LimitConfig{Rate: 100, Burst: 250}, AuditLog: "audit.log",
	}
	if diff := cmp.Diff(want, loaded.Access); diff != "" || !loaded.Configured() {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLoad_WithoutAccessControlNoCredentialIsNeeded(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, nil)
	musttest.NoError(t, err)
	want := config.Access{OIDCRolesClaim: auth.DefaultRolesClaim, OIDCScopes: auth.DefaultScopes, AuditLog: config.AuditStderr}
	if diff := cmp.Diff(want, loaded.Access); diff != "" || loaded.Configured() {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLoad_SaysWhatIsWrongWithAccess(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		vars map[string]string
		want string
	}{
		{map[string]string{"LUCIUS_LISTEN_ADDR": ":8080"}, `LUCIUS_LISTEN_ADDR is ":8080", must be a loopback address`},
		{map[string]string{"LUCIUS_LISTEN_ADDR": "192.0.2.1:8080"}, "set LUCIUS_AUTH_FILE or LUCIUS_OIDC_ISSUER"},
		{map[string]string{"LUCIUS_LISTEN_ADDR": "example.com:8080"}, "LUCIUS_LISTEN_ADDR"},
		{map[string]string{"LUCIUS_LISTEN_ADDR": "0.0.0.0:8080", "LUCIUS_TLS_CERT": "c", "LUCIUS_TLS_KEY": "k"}, "LUCIUS_LISTEN_ADDR"},
		{map[string]string{"LUCIUS_LISTEN_ADDR": "8080"}, `LUCIUS_LISTEN_ADDR is "8080", must be host:port`},
		{map[string]string{"LUCIUS_LISTEN_ADDR": "127.0.0.1:http"}, `has port "http"`},
		{map[string]string{"LUCIUS_OIDC_ISSUER": "http://issuer.example"}, `LUCIUS_OIDC_ISSUER is "http://issuer.example", must be https`},
		{map[string]string{"LUCIUS_OIDC_ISSUER": "https://issuer.example"}, "LUCIUS_OIDC_ISSUER needs LUCIUS_OIDC_AUDIENCE"},
		{map[string]string{"LUCIUS_OIDC_AUDIENCE": "lucius"}, "LUCIUS_OIDC_AUDIENCE needs LUCIUS_OIDC_ISSUER"},
		{map[string]string{"LUCIUS_OIDC_ROLES_CLAIM": ""}, "LUCIUS_OIDC_ROLES_CLAIM"},
		{map[string]string{"LUCIUS_OIDC_CLIENT_ID": "console"}, "LUCIUS_OIDC_CLIENT_ID needs LUCIUS_OIDC_ISSUER"},
		{map[string]string{"LUCIUS_OIDC_CLIENT_SECRET_FILE": "s"}, "LUCIUS_OIDC_CLIENT_SECRET_FILE needs LUCIUS_OIDC_CLIENT_ID"},
		{map[string]string{"LUCIUS_PUBLIC_URL": "https://lucius.example/ui/"}, "LUCIUS_PUBLIC_URL"},
		{map[string]string{"LUCIUS_PUBLIC_URL": "lucius.example"}, "LUCIUS_PUBLIC_URL"},
		{map[string]string{"LUCIUS_ENVIRONMENT": "production:pink"}, "must end with a colour that is one of grey, red, amber"},
		{map[string]string{"LUCIUS_ENVIRONMENT": ":red"}, "must begin with a name of at most 32 characters"},
		{map[string]string{"LUCIUS_ENVIRONMENT": strings.Repeat("ü", 33)}, "LUCIUS_ENVIRONMENT"},
		{map[string]string{"LUCIUS_ENVIRONMENT": "a\nb"}, "LUCIUS_ENVIRONMENT"},
		{map[string]string{"LUCIUS_TLS_CERT": "c"}, "LUCIUS_TLS_CERT and LUCIUS_TLS_KEY are needed together"},
		{map[string]string{"LUCIUS_TLS_KEY": "k"}, "LUCIUS_TLS_CERT and LUCIUS_TLS_KEY are needed together"},
		{map[string]string{"LUCIUS_TLS_CLIENT_CA": "a", "LUCIUS_AUTH_FILE": "f"}, "LUCIUS_TLS_CLIENT_CA needs LUCIUS_TLS_CERT"},
		{map[string]string{"LUCIUS_TLS_CLIENT_CA": "a", "LUCIUS_TLS_CERT": "c", "LUCIUS_TLS_KEY": "k"}, "LUCIUS_TLS_CLIENT_CA needs LUCIUS_AUTH_FILE"},
		{map[string]string{"LUCIUS_RATE_LIMIT_CALLER": "many"}, "LUCIUS_RATE_LIMIT_CALLER"},
		{map[string]string{"LUCIUS_RATE_LIMIT_CALLER": "-1"}, "LUCIUS_RATE_LIMIT_CALLER"},
		{map[string]string{"LUCIUS_RATE_LIMIT_CALLER": "NaN"}, "LUCIUS_RATE_LIMIT_CALLER"},
		{map[string]string{"LUCIUS_RATE_LIMIT_TENANT": "1:0"}, `LUCIUS_RATE_LIMIT_TENANT is "1:0", has the burst "0"`},
		{map[string]string{"LUCIUS_AUDIT_LOG": ""}, "LUCIUS_AUDIT_LOG"},
	} {
		if _, err := load(t, nil, test.vars); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v answered %v, want %s", test.vars, err, test.want)
		}
	}
}

// The paths of secrets are not secret, and no setting of access holds a secret itself.
func TestPrint_ShowsAccess(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, map[string]string{"LUCIUS_AUTH_FILE": "tokens.yaml", "LUCIUS_RATE_LIMIT_CALLER": "5:10"})
	musttest.NoError(t, err)
	var out bytes.Buffer
	musttest.NoError(t, loaded.Print(&out))
	for _, line := range []string{"LUCIUS_AUTH_FILE=tokens.yaml\n", "LUCIUS_RATE_LIMIT_CALLER=5:10\n", "LUCIUS_AUDIT_LOG=stderr\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is missing in:\n%s", line, out.String())
		}
	}
}
