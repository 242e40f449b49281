package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// CertificatesConfig names the files of a [Certificates].
type CertificatesConfig struct {
	// CertFile holds the server's certificate with its chain, in PEM. Required.
	CertFile string
	// KeyFile holds the certificate's private key, in PEM. Required.
	KeyFile string
	// ClientCAFile holds the authorities of client certificates, in PEM. Optional:
	// without it no client is asked for a certificate.
	ClientCAFile string
}

// Validate names the first field that is missing or invalid.
func (c CertificatesConfig) Validate() error {
	if c.CertFile == "" || c.KeyFile == "" {
		return errors.New("auth: CertFile and KeyFile are required together")
	}
	return nil
}

// Certificates holds the server's certificate and the authorities of its clients'
// certificates. It is safe for concurrent use, except that only one function of
// [Certificates.Look] may run at a time.
type Certificates struct {
	cfg     CertificatesConfig
	current atomic.Pointer[certified]
}

// certified is the configuration in use, and the hash of its files.
type certified struct {
	config *tls.Config
	digest string
}

// OpenCertificates reads the files. The error names the faulty file.
func OpenCertificates(cfg CertificatesConfig) (*Certificates, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Certificates{cfg: cfg}
	_, load := c.Look()
	if _, err := load(); err != nil {
		return nil, err
	}
	return c, nil
}

// Look reads the files, for a watcher: it returns a hash of their contents, or
// of the errors of reading them. The function uses the contents for new connections, or
// returns the error of [OpenCertificates] and changes nothing.
func (c *Certificates) Look() (string, func() ([]any, error)) {
	chain, key := strictyaml.Open(c.cfg.CertFile, maxFileSize), strictyaml.Open(c.cfg.KeyFile, maxFileSize)
	var authorities strictyaml.Content
	if c.cfg.ClientCAFile != "" {
		authorities = strictyaml.Open(c.cfg.ClientCAFile, maxFileSize)
	}
	seen := strictyaml.Digest(chain, key, authorities)
	return seen, func() ([]any, error) {
		config, err := c.config(chain, key, authorities)
		if err != nil {
			return nil, err
		}
		c.current.Store(&certified{config, seen})
		return []any{"expires", c.Expires()}, nil
	}
}

// InUse returns the hash of the files in use, comparable with [Certificates.Look]'s.
func (c *Certificates) InUse() string { return c.current.Load().digest }

// config returns the TLS configuration of the files.
func (c *Certificates) config(chain, key, authorities strictyaml.Content) (*tls.Config, error) {
	if chain.Err != nil {
		return nil, fmt.Errorf("certificate: %w", chain.Err)
	}
	if key.Err != nil {
		return nil, fmt.Errorf("key of the certificate: %w", key.Err)
	}
	pair, err := tls.X509KeyPair(chain.Text, key.Text)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", c.cfg.CertFile, c.cfg.KeyFile, err)
	}
	config := base()
	config.Certificates = []tls.Certificate{pair}
	if c.cfg.ClientCAFile == "" {
		return config, nil
	}
	if authorities.Err != nil {
		return nil, fmt.Errorf("client authorities: %w", authorities.Err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(authorities.Text) {
		return nil, fmt.Errorf("client authorities %s: holds no certificate in PEM", c.cfg.ClientCAFile)
	}
	// Client certificates are optional: a token will do as well, and health checks
	// have neither.
	config.ClientAuth = tls.VerifyClientCertIfGiven
	// A resumed session is not verified again. Without tickets there is no
	// resumption, so a removed authority counts no more from the next connection on.
	config.SessionTicketsDisabled = true
	return config, nil
}

// base returns the settings that do not depend on the files.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
}

// Expires returns when the certificate in use expires.
func (c *Certificates) Expires() time.Time {
	return c.current.Load().config.Certificates[0].Leaf.NotAfter
}

// TLSConfig returns the configuration for a server, which follows every reload. The
// caller owns it.
func (c *Certificates) TLSConfig() *tls.Config {
	config := base()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load().config, nil }
	return config
}
