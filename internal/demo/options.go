package demo

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"
)

// Options configures a run.
type Options struct {
	// BaseURL is the URL of the server, which must have the protocol doc.ingest with
	// the services extract, embed and index. Required.
	BaseURL string
	// DocumentsDir has the .txt and .html documents. Required.
	DocumentsDir string
	// WorkDir is the folder that the services write to; it is created. Required.
	WorkDir string
	// Out receives the progress and the results. Required.
	Out io.Writer
	// Terminal is true if Out is a terminal, on which bars can be drawn in place.
	Terminal bool
	// Query is the search at the end. Optional. Defaults to a question about a
	// lighthouse.
	Query string
	// Pace slows down each step, so that a person can watch. Optional. Defaults to 0.
	Pace time.Duration
	// Patience is how long the server may be away while jobs are in flight, such as
	// during a restart. Optional. Defaults to 30s.
	Patience time.Duration
}

// Validate returns an error that names the first invalid field.
func (o *Options) Validate() error {
	base, err := url.Parse(o.BaseURL)
	switch {
	case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return fmt.Errorf("BaseURL is %q, it must be an http or https URL", o.BaseURL)
	case o.DocumentsDir == "":
		return errors.New("DocumentsDir is required")
	case o.WorkDir == "":
		return errors.New("WorkDir is required")
	case o.Out == nil:
		return errors.New("Out is required")
	case o.Pace < 0:
		return fmt.Errorf("Pace is %s, it must not be negative", o.Pace)
	case o.Patience < 0:
		return fmt.Errorf("Patience is %s, it must not be negative", o.Patience)
	}
	return nil
}

// setDefaults fills in the defaults.
func (o *Options) setDefaults() {
	if o.Query == "" {
		o.Query = "a lamp that ships see at night from the sea"
	}
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
}
