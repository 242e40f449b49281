package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/waittest"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	a.certificate = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.certificate = a.sign(t, a.certificate, a.key)
	return a
}

func (a *authority) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// issue writes a certificate with that common name and its key to the files, and returns
// them.
func (a *authority) issue(t *testing.T, dir, name, certFile, keyFile string) tls.Certificate {
	t.Helper()
	return a.issueFor(t, time.Hour, dir, name, certFile, keyFile)
}

// issueFor is like issue, for a certificate that expires after that time.
func (a *authority) issueFor(t *testing.T, valid time.Duration, dir, name, certFile, keyFile string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(valid),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
	secret := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, certFile), chain, 0o600), os.WriteFile(filepath.Join(dir, keyFile), secret, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(chain, secret)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// client returns a client that trusts the authority and presents the certificates.
func (a *authority) client(own ...tls.Certificate) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return &http.Client{Transport: contracted(&http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: own},
	})}
}

// nameOf returns the common name of the server's certificate.
func (c *caller) nameOf(t *testing.T) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/healthz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	return response.TLS.PeerCertificates[0].Subject.CommonName
}

// run runs the binary to its end, and returns what it printed.
func run(t *testing.T, binary string, args ...string) (stdout, stderr string) {
	t.Helper()
	var said strings.Builder
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Stderr = &said
	out, _ := cmd.Output() // The caller sees a failure in the text.
	return string(out), said.String()
}

// TestAccess_TheBinary covers the steps from the first token to a server that reloads
// certificates and tokens while it runs.
func TestAccess_TheBinary(t *testing.T) {
	t.Parallel()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	dir, ca := t.TempDir(), newAuthority(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	if _, said := run(t, binary, "serve", "--listen-addr", "0.0.0.0:0"); !strings.Contains(said, "must be a loopback address") {
		t.Errorf("an open address without callers: %s", said)
	}
	made, _ := run(t, binary, "token", "new", "--name", "ci", "--role", "read:*", "--role", "submit:tenant_a", "--file", at("tokens.yaml"))
	token := strings.TrimSpace(made)

	ca.issue(t, dir, "first", "cert.pem", "key.pem")
	authorities := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.certificate.Raw})
	tokens, err := os.ReadFile(at("tokens.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	worker := "  - name: worker\n    certificates: ['cn:ocr-7']\n    roles: [{role: read, tenants: [tenant_a]}]\n"
	err = errors.Join(os.WriteFile(at("ca.pem"), authorities, 0o600),
		os.WriteFile(at("tokens.yaml"), append(tokens, worker...), 0o600))
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(binary, "serve", "--listen-addr", "127.0.0.1:0", "--storage-backend", "memory",
		"--protocols-dir", "../../protocols", "--protocols-interval", "1h", "--auth-file", at("tokens.yaml"),
		"--tls-cert", at("cert.pem"), "--tls-key", at("key.pem"), "--tls-client-ca", at("ca.pem"), "--audit-log", at("audit.log"))
	logged := &output{}
	cmd.Stderr = logged
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // It has ended, unless the test failed.
		_ = cmd.Wait()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "lucius serves ")
	if !ok || !strings.HasPrefix(url, "https://") {
		t.Fatalf("the server says %q and %s", line, logged)
	}

	ci := &caller{url: url, token: token, http: ca.client()}
	ci.want(t, http.StatusOK, "GET", "/v1/protocols", "")
	(&caller{url: url, http: ca.client()}).want(t, http.StatusUnauthorized, "GET", "/v1/protocols", "")
	certified := &caller{url: url, http: ca.client(ca.issue(t, dir, "ocr-7", "w.pem", "w.key"))}
	certified.want(t, http.StatusOK, "GET", "/v1/protocols", "")
	certified.want(t, http.StatusForbidden, "GET", "/v1/jobs?tenant_id=tenant_b", "")
	unknown := &caller{url: url, http: ca.client(ca.issue(t, dir, "ocr-8", "u.pem", "u.key"))}
	unknown.want(t, http.StatusUnauthorized, "GET", "/v1/protocols", "")
	stranger := ca.client(newAuthority(t).issue(t, dir, "ocr-7", "s.pem", "s.key"))
	if response, err := stranger.Get(url + "/v1/protocols"); err == nil {
		_ = response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("a certificate of another authority is let in")
		}
	}

	if name := ci.nameOf(t); name != "first" {
		t.Errorf("the server is %q", name)
	}
	ca.issue(t, dir, "second", "cert.pem", "key.pem")
	if err := os.WriteFile(at("tokens.yaml"), []byte("version: 1\ncallers:\n"+worker), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the new certificate is in use", func() bool { return ci.nameOf(t) == "second" })
	waittest.Until(t, "the token is withdrawn", func() bool {
		return ci.do(t, "GET", "/v1/protocols", "").status == http.StatusUnauthorized
	})
	certified.want(t, http.StatusOK, "GET", "/v1/protocols", "")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server did not end well: %v, %s", err, logged)
	}
	if strings.Contains(logged.String(), token) {
		t.Errorf("the token is in the log:\n%s", logged)
	}
}

func TestAccess_WhatDoesNotFitStopsTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("version: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no token file":    {[]string{"--auth-file", filepath.Join(dir, "none")}, "LUCIUS_AUTH_FILE"},
		"a bad token file": {[]string{"--auth-file", bad}, "bad.yaml:1"},
		"no certificate":   {[]string{"--tls-cert", filepath.Join(dir, "none"), "--tls-key", bad}, "LUCIUS_TLS_CERT"},
		"a bad key":        {[]string{"--tls-cert", bad, "--tls-key", bad}, "LUCIUS_TLS_KEY"},
		"no audit log":     {[]string{"--audit-log", filepath.Join(dir, "none", "log")}, "LUCIUS_AUDIT_LOG"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{
				"serve", "--listen-addr", "127.0.0.1:0", "--storage-backend", "memory", "--protocols-dir", "../../protocols", "--log-level", "error",
			}, test.args...)
			p := &program{Env: cli.Env{Stdout: &output{}, Stderr: &output{}}}
			if err := p.run(t.Context(), args); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("answered %v, want %s", err, test.want)
			}
		})
	}
}

// A forged token makes the server fetch nothing, and a server starts although its
// issuer is down.
func TestAccess_AnIssuerThatIsDown(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	issuer := "http://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, t.TempDir(), "--storage-backend", "memory", "--oidc-issuer", issuer, "--oidc-audience", "lucius")
	// {"alg":"EdDSA","kid":"k"} and {}.
	jwt := &caller{url: s.url, token: "eyJhbGciOiJFZERTQSIsImtpZCI6ImsifQ.e30.AAAA", http: newAuthority(t).client()}
	if got := jwt.want(t, http.StatusServiceUnavailable, "GET", "/v1/protocols", ""); got.field(t, "code") != "issuer_unavailable" ||
		got.header.Get("Retry-After") != "5" {
		t.Errorf("answered %s with %v", got.body, got.header)
	}
	nonsense := &caller{url: s.url, token: "nonsense", http: newAuthority(t).client()}
	nonsense.want(t, http.StatusUnauthorized, "GET", "/v1/protocols", "")
}
