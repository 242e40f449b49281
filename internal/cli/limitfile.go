package cli

import (
	"os"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// limitFile is the file of lucius limit apply.
type limitFile struct {
	Limits []struct {
		ID         string `yaml:"id"`
		Starts     string `yaml:"starts"`
		MaxRunning int    `yaml:"max_running"`
		Reason     string `yaml:"reason"`
	} `yaml:"limits"`
}

// wantedLimits are the requests of a file of limits, in its order.
type wantedLimits struct {
	ids      []string
	requests map[string]api.StartLimitRequest
}

// readLimits reads a file of limits.
func readLimits(path string) (wanted wantedLimits, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return wanted, usagef("read the limits: %w", err)
	}
	var file limitFile
	if fault := strictyaml.Decode(text, &file, nil); fault != nil {
		fault.File = path
		return wanted, usagef("%w", fault)
	}
	wanted.requests = map[string]api.StartLimitRequest{}
	for i, one := range file.Limits {
		request, err := limitRequest(one.Starts, one.MaxRunning)
		switch _, twice := wanted.requests[one.ID]; {
		case one.ID == "":
			return wanted, usagef("%s: limits[%d] has no id", path, i)
		case twice:
			return wanted, usagef("%s: limits[%d] names %s again", path, i, plain(one.ID))
		case err != nil:
			return wanted, usagef("%s: %s: %w", path, plain(one.ID), err)
		case one.Reason == "":
			return wanted, usagef("%s: %s has no reason", path, plain(one.ID))
		}
		wanted.ids = append(wanted.ids, one.ID)
		request.Reason = one.Reason
		wanted.requests[one.ID] = request
	}
	return wanted, nil
}
