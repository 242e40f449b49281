package auth_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
)

// authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: ecKey("").private.(*ecdsa.PrivateKey)}
	a.certificate = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.certificate = a.issue(t, a.certificate, a.key)
	return a
}

// issue signs a certificate.
func (a *authority) issue(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	musttest.NoError(t, err)
	return must(x509.ParseCertificate(der))
}

// leaf returns a certificate with that common name, and its key, in PEM.
func (a *authority) leaf(t *testing.T, name string) (certificate, key string) {
	t.Helper()
	private := ecKey("").private.(*ecdsa.PrivateKey)
	issued := a.issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, URIs: []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/" + name}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, private)
	return inPEM("CERTIFICATE", issued.Raw), inPEM("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(private)))
}

func inPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// files writes a certificate and its key.
func (a *authority) files(t *testing.T, dir, name string) auth.CertificatesConfig {
	t.Helper()
	cfg := auth.CertificatesConfig{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	certificate, key := a.leaf(t, name)
	overwrite(t, cfg.CertFile, certificate)
	overwrite(t, cfg.KeyFile, key)
	return cfg
}

// expiryOf returns when the certificate in the file expires.
func expiryOf(t *testing.T, path string) time.Time {
	t.Helper()
	block, _ := pem.Decode([]byte(content(t, path)))
	return must(x509.ParseCertificate(block.Bytes)).NotAfter
}

// serveTLS runs a server that answers with the caller's name, and returns its URL.
func serveTLS(t *testing.T, certificates *auth.Certificates, guarded *auth.Authenticator) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := guarded.Authenticate(r)
		if err != nil {
			w.Header().Set("WWW-Authenticate", auth.Challenge(err))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, r.Proto+" "+caller.Name())
	}))
	server.Config.TLSConfig = certificates.TLSConfig()
	listener := server.Listener
	go func() { _ = server.Config.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Config.Close() })
	return "https://" + listener.Addr().String()
}

// visit makes one request on a connection of its own, and returns the answer and
// the name in the server's certificate.
func visit(t *testing.T, address string, trusted *authority, own ...tls.Certificate) (answer, server string, err error) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(trusted.certificate)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: own}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	musttest.NoError(t, err)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), response.TLS.PeerCertificates[0].Subject.CommonName, err
}

func TestCertificates_AreReplacedWhileTheServerRuns(t *testing.T) {
	t.Parallel()
	ca, dir := newAuthority(t), t.TempDir()
	cfg := ca.files(t, dir, "first")
	certificates := musttest.Make(t, auth.OpenCertificates, cfg)
	if at := certificates.Expires(); !at.Equal(expiryOf(t, cfg.CertFile)) {
		t.Errorf("it expires at %s", at)
	}
	address := serveTLS(t, certificates, auth.New(auth.Config{}))
	if answer, server, err := visit(t, address, ca); err != nil || server != "first" || answer != "HTTP/2.0 local" {
		t.Errorf("answered %q as %s, %v", answer, server, err)
	}
	if seen, _ := certificates.Look(); seen != certificates.InUse() {
		t.Error("the files on disk are not those in use")
	}
	ca.files(t, dir, "second")
	if seen, _ := certificates.Look(); seen == certificates.InUse() {
		t.Error("the digest does not show the change")
	}
	musttest.NoError(t, loadNow(certificates))
	if _, server, err := visit(t, address, ca); err != nil || server != "second" {
		t.Errorf("after the reload it is %s, %v", server, err)
	}
	overwrite(t, cfg.KeyFile, "no key")
	if err := loadNow(certificates); err == nil {
		t.Error("a broken key was accepted")
	}
	if _, server, err := visit(t, address, ca); err != nil || server != "second" {
		t.Errorf("after a broken file it is %s, %v", server, err)
	}
}

func TestCertificates_OfClients(t *testing.T) {
	t.Parallel()
	ca, clients, strangers, dir := newAuthority(t), newAuthority(t), newAuthority(t), t.TempDir()
	cfg := ca.files(t, dir, "server")
	cfg.ClientCAFile = filepath.Join(dir, "clients.pem")
	overwrite(t, cfg.ClientCAFile, inPEM("CERTIFICATE", clients.certificate.Raw))
	certificates := musttest.Make(t, auth.OpenCertificates, cfg)
	file := open(t, head+"  - name: worker\n    certificates: [\"uri:spiffe://example.org/ocr\"]\n    roles: [{role: platform, tenants: [a]}]\n")
	address := serveTLS(t, certificates, auth.New(auth.Config{File: file}))
	own := func(a *authority, name string) tls.Certificate {
		certificate, key := a.leaf(t, name)
		return must(tls.X509KeyPair([]byte(certificate), []byte(key)))
	}
	known := own(clients, "ocr")
	if answer, _, err := visit(t, address, ca, known); err != nil || answer != "HTTP/2.0 worker" {
		t.Errorf("a known client: %q, %v", answer, err)
	}
	if answer, _, err := visit(t, address, ca, own(clients, "nobody")); err != nil || answer != "" {
		t.Errorf("an unknown client: %q, %v", answer, err)
	}
	if answer, _, err := visit(t, address, ca); err != nil || answer != "" {
		t.Errorf("a client without a certificate: %q, %v", answer, err)
	}
	if answer, _, err := visit(t, address, ca, own(strangers, "ocr")); err == nil && answer != "" {
		t.Errorf("a client of another authority: %q, %v", answer, err)
	}
	overwrite(t, cfg.ClientCAFile, inPEM("CERTIFICATE", strangers.certificate.Raw))
	musttest.NoError(t, loadNow(certificates))
	if answer, _, err := visit(t, address, ca, known); err == nil && answer != "" {
		t.Errorf("a client of an authority that was removed: %q, %v", answer, err)
	}
}

func TestOpenCertificates_SaysWhichFileIsWrong(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	good := ca.files(t, t.TempDir(), "a")
	foreign := other.files(t, t.TempDir(), "b")
	none, garbage := filepath.Join(t.TempDir(), "none"), put(t, "garbage.pem", "garbage")
	for want, cfg := range map[string]auth.CertificatesConfig{
		"CertFile and KeyFile are required": {CertFile: good.CertFile},
		"certificate: open":                 {CertFile: none, KeyFile: good.KeyFile},
		"key of the certificate: open":      {CertFile: good.CertFile, KeyFile: none},
		"private key does not match":        {CertFile: good.CertFile, KeyFile: foreign.KeyFile},
		"failed to find any PEM data":       {CertFile: garbage, KeyFile: good.KeyFile},
		"client authorities: open":          {CertFile: good.CertFile, KeyFile: good.KeyFile, ClientCAFile: none},
		"holds no certificate in PEM":       {CertFile: good.CertFile, KeyFile: good.KeyFile, ClientCAFile: garbage},
	} {
		if _, err := auth.OpenCertificates(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("answered %v, want %q", err, want)
		}
	}
}
