package bench

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"
)

// Options configures a measurement.
type Options struct {
	// BaseURL is the URL of the server, such as http://127.0.0.1:8080. The server must
	// have been started with the protocols of [WriteProtocols]. Required.
	BaseURL string
	// Dir is a folder on the disk that holds the server's data. The ceiling is
	// measured there, in a file that is removed afterwards. Required.
	Dir string
	// Out receives the results. Required.
	Out io.Writer
	// Progress receives lines about the progress of the run. Optional.
	Progress io.Writer
	// ServerPID is the server's process id, for measuring its CPU time. Optional. 0
	// omits that.
	ServerPID int
	// Steps are the numbers of steps to measure jobs with, each in a run of its
	// own; see [ParseSteps]. Optional. Defaults to 1 and 3.
	Steps []int
	// Submitters is the number of clients, and so of jobs in flight. Optional.
	// Defaults to 64.
	Submitters int
	// Pullers is the number of claims that wait for work at the same time; each
	// may take many items at once. Optional. Defaults to 4.
	Pullers int
	// PayloadBytes is the size of each command's payload. Optional. Defaults to
	// 256.
	PayloadBytes int
	// Duration is how long each run is measured. Optional. Defaults to 10s.
	Duration time.Duration
	// WarmUp is how long each run lasts before that. Optional. Defaults to 2s.
	WarmUp time.Duration
	// Drain is how long the last jobs may take to end after a run. Optional.
	// Defaults to 30s.
	Drain time.Duration
	// JSON writes the results as one JSON document instead of a table. Optional.
	JSON bool
}

// The limits of the options. The largest payload is the server's default limit.
const (
	maxSubmitters = 4096
	maxPullers    = 64
	minPayload    = 11 // {"data":""}
	maxPayload    = 128 << 10
)

// Validate returns an error that names the first invalid field.
func (o *Options) Validate() error {
	base, err := url.Parse(o.BaseURL)
	switch {
	case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return fmt.Errorf("BaseURL is %q, it must be an http or https URL", o.BaseURL)
	case o.Dir == "":
		return errors.New("Dir is required")
	case o.Out == nil:
		return errors.New("Out is required")
	case o.Submitters < 1 || o.Submitters > maxSubmitters:
		return fmt.Errorf("Submitters is %d, it must be from 1 to %d", o.Submitters, maxSubmitters)
	case o.Pullers < 1 || o.Pullers > maxPullers:
		return fmt.Errorf("Pullers is %d, it must be from 1 to %d", o.Pullers, maxPullers)
	case o.PayloadBytes < minPayload || o.PayloadBytes > maxPayload:
		return fmt.Errorf("PayloadBytes is %d, it must be from %d to %d", o.PayloadBytes, minPayload, maxPayload)
	case o.Duration <= 0:
		return fmt.Errorf("Duration is %s, it must be more than 0", o.Duration)
	case o.WarmUp < 0:
		return fmt.Errorf("WarmUp is %s, it must not be negative", o.WarmUp)
	case o.Drain <= 0:
		return fmt.Errorf("Drain is %s, it must be more than 0", o.Drain)
	case o.ServerPID < 0:
		return fmt.Errorf("ServerPID is %d, it must be a process", o.ServerPID)
	}
	for _, steps := range o.Steps {
		if !measurable(steps) {
			return fmt.Errorf("Steps is %d, it must be 1 or 3", steps)
		}
	}
	return nil
}

// setDefaults fills in the defaults.
func (o *Options) setDefaults() {
	if len(o.Steps) == 0 {
		o.Steps = []int{1, 3}
	}
	if o.Submitters == 0 {
		o.Submitters = 64
	}
	if o.Pullers == 0 {
		o.Pullers = 4
	}
	if o.PayloadBytes == 0 {
		o.PayloadBytes = 256
	}
	if o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.WarmUp == 0 {
		o.WarmUp = 2 * time.Second
	}
	if o.Drain == 0 {
		o.Drain = 30 * time.Second
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
}

// ParseSteps parses the command line's "1", "3" or "both".
func ParseSteps(text string) ([]int, error) {
	switch text {
	case "1":
		return []int{1}, nil
	case "3":
		return []int{3}, nil
	case "both":
		return []int{1, 3}, nil
	}
	return nil, fmt.Errorf("steps is %q, it must be 1, 3 or both", text)
}
