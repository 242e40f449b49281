package demo

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"
)

// Options is what a demo needs.
type Options struct {
	// BaseURL is where the server answers. It must have the protocol doc.ingest
	// with the services extract, embed and index. Required.
	BaseURL string
	// DocumentsDir holds the .txt and .html documents. Required.
	DocumentsDir string
	// WorkDir is where the services write; it is created. Required.
	WorkDir string
	// Out is where the demo tells what happens. Required.
	Out io.Writer
	// Terminal says that Out is one, so that bars can be drawn in place.
	Terminal bool
	// Query is what the index is searched for at the end. Optional. Defaults to a
	// question about a lighthouse.
	Query string
	// Pace is how much longer each step takes than its work, so that somebody can
	// watch. Optional. Defaults to no longer.
	Pace time.Duration
	// Patience is for how long the server may not answer while the jobs are under
	// way, as when it restarts. Optional. Defaults to 30s.
	Patience time.Duration
}

// Validate names the first field that makes no sense.
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

// setDefaults fills in what was left out.
func (o *Options) setDefaults() {
	if o.Query == "" {
		o.Query = "a lamp that ships see at night from the sea"
	}
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
}
