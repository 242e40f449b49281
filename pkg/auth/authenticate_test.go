package auth_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

// request returns a request with these headers, given as name and value in turn.
func request(t testing.TB, method string, headers ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:8080/v1/jobs", http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// nameFor returns the name of the token's caller, empty if there is none.
func nameFor(file *auth.File, token string) string {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	caller, _ := auth.New(auth.Config{File: file}).Authenticate(r)
	return caller.Name()
}

// authenticate returns the caller that has the token.
func authenticate(t testing.TB, file *auth.File, token string) auth.Caller {
	t.Helper()
	return musttest.Make(t, auth.New(auth.Config{File: file}).Authenticate, request(t, http.MethodGet, "Authorization", "Bearer "+token))
}

// open opens a token file with that text.
func open(t testing.TB, text string) *auth.File {
	t.Helper()
	return musttest.Make(t, auth.OpenFile, put(t, "tokens.yaml", text))
}

func TestAuthenticate_ByToken(t *testing.T) {
	t.Parallel()
	old, young, other := auth.NewToken(), auth.NewToken(), auth.NewToken()
	file := open(t, head+stanza("other", other, "{role: read, tenants: [b]}")+
		"  - name: ci\n    tokens: ["+hash(old)+", "+hash(young)+"]\n    roles: [{role: submit, tenants: [a]}]\n")
	for _, token := range []string{old, young} {
		caller := authenticate(t, file, token)
		if caller.Name() != "ci" || caller.Origin() != auth.ByToken || !caller.May(auth.Submit, "a") || caller.May(auth.Read, "b") {
			t.Errorf("the caller is %+v", caller)
		}
	}
	if caller := authenticate(t, file, other); caller.Name() != "other" {
		t.Errorf("the other caller is %+v", caller)
	}
	guarded := auth.New(auth.Config{File: file})
	if caller, err := guarded.Authenticate(request(t, http.MethodGet, "Authorization", "bEARER   "+old)); caller.Name() != "ci" || err != nil {
		t.Errorf("another case and more spaces: %+v, %v", caller, err)
	}
}

func TestAuthenticate_Refuses(t *testing.T) {
	t.Parallel()
	known, unknown, weak := auth.NewToken(), auth.NewToken(), "hunter2"
	file := open(t, head+stanza("ci", known, "{role: submit, tenants: [a]}")+stanza("weak", weak, `{role: admin, tenants: "*"}`))
	guarded := auth.New(auth.Config{File: file})
	if !guarded.Configured() {
		t.Error("a token file does not count as configured")
	}
	for name, headers := range map[string][]string{
		"an unknown token":         {"Authorization", "Bearer " + unknown},
		"a wrong checksum":         {"Authorization", "Bearer " + known[:len(known)-1] + "7"},
		"a token that is cut":      {"Authorization", "Bearer " + known[:len(known)-7]},
		"the prefix alone":         {"Authorization", "Bearer lucius_"},
		"the hash":                 {"Authorization", "Bearer " + hash(known)},
		"a hashed password":        {"Authorization", "Bearer " + weak},
		"a JWT without an issuer":  {"Authorization", "Bearer eyJhbGciOiJub25lIn0.e30."},
		"another scheme":           {"Authorization", "Basic " + known},
		"no scheme":                {"Authorization", known},
		"no token":                 {"Authorization", "Bearer"},
		"an empty header":          {"Authorization", ""},
		"two tokens in one header": {"Authorization", "Bearer " + known + " " + known},
		"two headers":              {"Authorization", "Bearer " + known, "Authorization", "Bearer " + known},
		"a huge token":             {"Authorization", "Bearer lucius_" + strings.Repeat("a", 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller, err := guarded.Authenticate(request(t, http.MethodGet, headers...))
			refused(t, caller, err, auth.ErrInvalidCredential)
		})
	}
	caller, err := guarded.Authenticate(request(t, http.MethodGet))
	refused(t, caller, err, auth.ErrNoCredential)
}

// refused checks that a credential was refused for that reason, and that the answer
// tells the client only its kind.
func refused(t *testing.T, caller auth.Caller, err, reason error) {
	t.Helper()
	if caller.Name() != "" || caller.Has(auth.Read) {
		t.Errorf("there is a caller: %+v", caller)
	}
	if !errors.Is(err, reason) {
		t.Fatalf("answered %v, want %v", err, reason)
	}
	told := map[error][3]string{
		auth.ErrInvalidCredential: {"unauthenticated", "The credential is not valid.", `Bearer realm="lucius", error="invalid_token"`},
		auth.ErrNoCredential:      {"unauthenticated", "Send a token in the header Authorization: Bearer.", `Bearer realm="lucius"`},
		auth.ErrIssuerUnavailable: {"issuer_unavailable", "The token cannot be checked at the moment: its issuer does not answer. Send the request again.", ""},
		auth.ErrCrossSite:         {"forbidden", apierror.From(err).Detail, ""},
	}[reason]
	fault := apierror.From(err)
	if got := [3]string{string(fault.Code), fault.Detail, auth.Challenge(err)}; got != told {
		t.Errorf("the client is told %q, want %q", got, told)
	}
}

func TestChallenge_IsForUnauthenticatedAlone(t *testing.T) {
	t.Parallel()
	if auth.Challenge(nil) != "" || auth.Challenge(errors.New("x")) != "" {
		t.Error("there is a challenge")
	}
}

func TestAuthenticate_NothingConfigured(t *testing.T) {
	t.Parallel()
	bare := auth.New(auth.Config{Hosts: []string{"lucius.internal"}})
	if bare.Configured() {
		t.Error("nothing counts as configured")
	}
	for name, test := range map[string]struct {
		method, host string
		headers      []string
		ok           bool
	}{
		"curl":                         {http.MethodPost, "127.0.0.1:8080", nil, true},
		"any loopback address":         {http.MethodPost, "127.8.8.8", nil, true},
		"IPv6":                         {http.MethodPost, "[::1]:8080", nil, true},
		"IPv6 without a port":          {http.MethodPost, "[::1]", nil, true},
		"localhost":                    {http.MethodPost, "LocalHost:8080", nil, true},
		"a proxy's name":               {http.MethodPost, "Lucius.internal:80", nil, true},
		"a needless token":             {http.MethodPost, "localhost", []string{"Authorization", "Bearer x"}, true},
		"its own page":                 {http.MethodPost, "localhost:8080", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:8080"}, true},
		"a name that was rebound":      {http.MethodGet, "attacker.example:8080", nil, false},
		"one that begins with ours":    {http.MethodGet, "localhost.attacker.example", nil, false},
		"one that begins with a loop":  {http.MethodGet, "127.0.0.1.attacker.example", nil, false},
		"another address":              {http.MethodGet, "192.0.2.1:8080", nil, false},
		"no host":                      {http.MethodGet, "", nil, false},
		"another site's page writes":   {http.MethodPost, "localhost:8080", []string{"Sec-Fetch-Site", "cross-site"}, false},
		"a page of another port does":  {http.MethodPost, "localhost:8080", []string{"Sec-Fetch-Site", "same-site"}, false},
		"an old browser's page writes": {http.MethodPost, "localhost:8080", []string{"Origin", "https://attacker.example"}, false},
		"a sandboxed page writes":      {http.MethodPost, "localhost:8080", []string{"Origin", "null"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request(t, test.method, test.headers...)
			r.Host = test.host
			caller, err := bare.Authenticate(r)
			if test.ok {
				if err != nil || caller.Origin() != auth.ByLocal || !caller.MayServe("a", "b") {
					t.Errorf("answered %+v, %v", caller, err)
				}
				for _, role := range auth.Roles() {
					if !caller.May(role, "") {
						t.Errorf("the caller may not %s", role)
					}
				}
				return
			}
			refused(t, auth.Caller{}, err, auth.ErrCrossSite)
		})
	}
}

// shown returns a request whose connection has a verified client certificate.
func shown(t *testing.T, certificate *x509.Certificate, headers ...string) *http.Request {
	t.Helper()
	r := request(t, http.MethodPost, headers...)
	r.TLS = &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{certificate}, VerifiedChains: [][]*x509.Certificate{{certificate}},
	}
	return r
}

func TestAuthenticate_ByCertificate(t *testing.T) {
	t.Parallel()
	token := auth.NewToken()
	file := open(t, head+stanza("ci", token, "{role: read, tenants: [a]}")+
		"  - name: worker\n    certificates: [\"uri:spiffe://example.org/ocr\", \"cn:worker-1\"]\n    roles: [{role: platform, tenants: [a]}]\n"+
		"  - name: other\n    certificates: [cn:worker-2]\n    roles: [{role: read, tenants: [b]}]\n")
	guarded := auth.New(auth.Config{File: file})
	certificate := func(name, uri string) *x509.Certificate {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
		if uri != "" {
			parsed := musttest.Make(t, url.Parse, uri)
			c.URIs = []*url.URL{parsed}
		}
		return c
	}
	expired := certificate("worker-1", "")
	expired.NotAfter = time.Now().Add(-time.Second)
	unverified := shown(t, certificate("worker-1", ""))
	unverified.TLS.VerifiedChains = nil
	for name, test := range map[string]struct {
		request *http.Request
		want    string
		reason  error
	}{
		"by its common name":            {shown(t, certificate("worker-1", "")), "worker", nil},
		"by its URI":                    {shown(t, certificate("", "spiffe://example.org/ocr")), "worker", nil},
		"the URI goes first":            {shown(t, certificate("worker-2", "spiffe://example.org/ocr")), "worker", nil},
		"an unknown URI":                {shown(t, certificate("worker-2", "spiffe://example.org/x")), "other", nil},
		"a token goes first":            {shown(t, certificate("worker-1", ""), "Authorization", "Bearer "+token), "ci", nil},
		"it does not mend a bad token":  {shown(t, certificate("worker-1", ""), "Authorization", "Bearer x"), "", auth.ErrInvalidCredential},
		"an unknown name":               {shown(t, certificate("nobody", "")), "", auth.ErrInvalidCredential},
		"no name":                       {shown(t, certificate("", "")), "", auth.ErrInvalidCredential},
		"expired since the handshake":   {shown(t, expired), "", auth.ErrInvalidCredential},
		"unverified":                    {unverified, "", auth.ErrNoCredential},
		"sent along for another's page": {shown(t, certificate("worker-1", ""), "Sec-Fetch-Site", "cross-site"), "", auth.ErrCrossSite},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller, err := guarded.Authenticate(test.request)
			if test.reason != nil {
				refused(t, auth.Caller{}, err, test.reason)
				return
			}
			if err != nil || caller.Name() != test.want {
				t.Errorf("answered %+v, %v", caller, err)
			}
			if test.want != "ci" && caller.Origin() != auth.ByCertificate {
				t.Errorf("the origin is %s", caller.Origin())
			}
		})
	}
}

func TestCheckListen(t *testing.T) {
	t.Parallel()
	for address, loopback := range map[string]bool{
		"127.0.0.1:8080": true, "127.1.2.3:0": true, "[::1]:8080": true, "localhost:8080": true,
		"0.0.0.0:8080": false, ":8080": false, "[::]:8080": false, "192.0.2.1:80": false, "example.org:80": false,
		"[::ffff:127.0.0.1]:80": true, "[::ffff:192.0.2.1]:80": false, "localhost.example.org:80": false,
	} {
		if err := auth.CheckListen(address, true); err != nil {
			t.Errorf("%s is refused although credentials are needed: %v", address, err)
		}
		if err := auth.CheckListen(address, false); loopback != (err == nil) || !loopback && !errors.Is(err, auth.ErrExposed) {
			t.Errorf("%s without credentials: %v", address, err)
		}
	}
	for _, configured := range []bool{true, false} {
		if err := auth.CheckListen("127.0.0.1", configured); err == nil || errors.Is(err, auth.ErrExposed) {
			t.Errorf("no address: %v", err)
		}
	}
}
