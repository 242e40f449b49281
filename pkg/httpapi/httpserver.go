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
	// writeMargin is how long a client may take to send its request and to read the
	// answer, in addition to the longest wait.
	writeMargin = 60 * time.Second
)

// NewHTTPServer returns an [http.Server] that serves the handler with limits on
// time and size, and logs connection errors at debug. It has no ReadTimeout, which
// would also end requests that wait; see [Config].BodyTimeout. [LimitConnections]
// bounds the number of connections.
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
		// The handler refuses OPTIONS *, as any other unknown path.
		DisableGeneralOptionsHandler: true,
	}
}
