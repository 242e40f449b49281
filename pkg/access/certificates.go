package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// CertificatesConfig names the files of a [Certificates].
type CertificatesConfig struct {
	// CertFile is the server's certificate with its chain, in PEM. Required.
	CertFile string
	// KeyFile is the certificate's private key, in PEM. Required.
	KeyFile string
	// ClientCAFile is the authorities that client certificates may come from, in
	// PEM. Optional: without it no client is asked for a certificate.
	ClientCAFile string
}

// Validate reports the first field that makes no sense, by name.
func (c CertificatesConfig) Validate() error {
	if c.CertFile == "" || c.KeyFile == "" {
		return errors.New("access: CertFile and KeyFile are required together")
	}
	return nil
}

// Certificates is what the server shows its clients, and which of their
// certificates it takes. It is safe for concurrent use, but for Reload, of which
// one call runs at a time.
type Certificates struct {
	cfg     CertificatesConfig
	current atomic.Pointer[tls.Config]
}

// OpenCertificates reads the files. The error says which is wrong.
func OpenCertificates(cfg CertificatesConfig) (*Certificates, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Certificates{cfg: cfg}
	if err := c.Reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// Reload reads the files again, and puts them into use for new connections if
// nothing is wrong with any. Otherwise what was in use stays so, and the error
// is that of [OpenCertificates].
func (c *Certificates) Reload() error {
	chain, err := readLimited(c.cfg.CertFile)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	key, err := readLimited(c.cfg.KeyFile)
	if err != nil {
		return fmt.Errorf("key of the certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", c.cfg.CertFile, c.cfg.KeyFile, err)
	}
	config := base()
	config.Certificates = []tls.Certificate{pair}
	if c.cfg.ClientCAFile != "" {
		if err := c.askClients(config); err != nil {
			return err
		}
	}
	c.current.Store(config)
	return nil
}

// errNoAuthority is returned for a file of authorities that holds none.
var errNoAuthority = errors.New("holds no certificate in PEM")

// askClients has clients asked for a certificate. They need not have one: a
// token will do as well, and health checks have neither.
func (c *Certificates) askClients(config *tls.Config) error {
	text, err := readLimited(c.cfg.ClientCAFile)
	if err != nil {
		return fmt.Errorf("client authorities: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return fmt.Errorf("client authorities %s: %w", c.cfg.ClientCAFile, errNoAuthority)
	}
	config.ClientAuth = tls.VerifyClientCertIfGiven
	// A session that is resumed is not verified anew. Without tickets there are
	// none, so an authority that was taken away is gone with the next connection.
	config.SessionTicketsDisabled = true
	return nil
}

// base is what does not depend on the files.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
}

// Digest returns a hash of what the files hold now, or of why they cannot be
// read. Whoever watches the files calls Reload when that changes.
func (c *Certificates) Digest() string {
	if c.cfg.ClientCAFile == "" {
		return digest(c.cfg.CertFile, c.cfg.KeyFile)
	}
	return digest(c.cfg.CertFile, c.cfg.KeyFile, c.cfg.ClientCAFile)
}

// Expires returns when the certificate in use ends.
func (c *Certificates) Expires() time.Time { return c.current.Load().Certificates[0].Leaf.NotAfter }

// TLSConfig returns the configuration for a server, which takes up every Reload.
// The caller owns it.
func (c *Certificates) TLSConfig() *tls.Config {
	config := base()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil }
	return config
}
