package httpapi

import (
	"log/slog"
	"net/http"
	"time"
)

// The limits of the connections of [NewHTTPServer].
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
	// maxRequests is how many requests one HTTP/2 connection may have under way.
	maxRequests = 100
	// writeMargin is what a client may take to send its request and to read the
	// answer, beside the longest wait.
	writeMargin = 60 * time.Second
)

// NewHTTPServer returns an [http.Server] that serves the handler under limits on
// time and size, and logs what goes wrong with connections at debug. There is
// no limit on reading a request as a whole, because it would also end requests
// that wait; see [Config].BodyTimeout. [LimitConnections] bounds how many there
// are.
//
// To stop: [Server.Drain], then Shutdown.
func NewHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      MaxWait + writeMargin,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxRequests},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		// OPTIONS * is the handler's to refuse, as any other.
		DisableGeneralOptionsHandler: true,
	}
}
