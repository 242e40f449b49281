package webhook

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// The limits on reading an answer.
const (
	maxAnswerHeader = 16 << 10
	// maxAnswerBody is how much is read so that the connection can be reused; a
	// longer answer ends with its connection.
	maxAnswerBody = 4 << 10
)

// newTransport returns the sender's transport. It is used without an http.Client,
// because a transport follows no redirect and keeps no cookie.
func newTransport(cfg *Config) *http.Transport {
	dialer := &net.Dialer{
		Timeout:        min(cfg.Timeout, 10*time.Second),
		Resolver:       cfg.Resolver,
		ControlContext: cfg.Guard.control,
	}
	return &http.Transport{
		// With a proxy the guard would see only the proxy's address.
		Proxy:                  nil,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		TLSHandshakeTimeout:    cfg.Timeout,
		ResponseHeaderTimeout:  cfg.Timeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		// The answer's body is not used, so do not decompress it.
		DisableCompression: true,
		MaxConnsPerHost:    cfg.MaxConnsPerHost,
		MaxIdleConns:       cfg.MaxIdleConns,
		// Two are enough for a receiver that gets one webhook now and then.
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     30 * time.Second,
		// Only HTTP/1.1: each attempt has its own connection, and every receiver
		// speaks it.
		Protocols: http1(),
	}
}

func http1() *http.Protocols {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return protocols
}
