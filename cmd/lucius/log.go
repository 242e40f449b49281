package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
)

// newLogger returns the configured logger. It masks secrets in texts and errors, such as
// the signature in a URL that an SDK quotes, summarises the repeated messages of a store
// outage, and leaves out those that a stop causes.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var parsed slog.Level
	if err := parsed.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	options := &slog.HandlerOptions{Level: parsed, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Value.Kind() == slog.KindString {
			attr.Value = slog.StringValue(config.Mask(attr.Value.String()))
		} else if err, ok := attr.Value.Any().(error); ok {
			attr.Value = slog.StringValue(config.Mask(err.Error()))
		}
		return attr
	}}
	var handler slog.Handler = slog.NewJSONHandler(cli.SafeJSON{Writer: w}, options)
	if format == "text" {
		handler = slog.NewTextHandler(w, options)
	}
	return slog.New(newStoreSummary(handler)), nil
}
