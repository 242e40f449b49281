package webhooks

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// The bounds on what is read of an answer.
const (
	maxAnswerHeader = 16 << 10
	// maxAnswerBody is what is read so that the connection can be used again; the
	// rest is cut off with it.
	maxAnswerBody = 4 << 10
)

// newTransport returns the way out. It is used bare, without an http.Client on
// top: a transport follows no redirect and keeps no cookie.
func newTransport(cfg *Config) *http.Transport {
	dialer := &net.Dialer{
		Timeout:        min(cfg.Timeout, 10*time.Second),
		Resolver:       cfg.Resolver,
		ControlContext: cfg.Guard.control,
	}
	return &http.Transport{
		// A proxy would be the only address that the guard gets to see.
		Proxy:                  nil,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		TLSHandshakeTimeout:    cfg.Timeout,
		ResponseHeaderTimeout:  cfg.Timeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		// The answer is not looked at: nothing is to be unpacked.
		DisableCompression: true,
		MaxConnsPerHost:    cfg.MaxConnsPerHost,
		MaxIdleConns:       cfg.MaxIdleConns,
		// Two are enough for a receiver that gets one webhook now and then.
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     30 * time.Second,
		// HTTP/1.1 alone: each attempt has a connection to itself, and every
		// receiver speaks it.
		Protocols: http1(),
	}
}

func http1() *http.Protocols {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return protocols
}
