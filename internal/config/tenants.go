package config

import (
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/strictyaml"
)

const (
	// maxInflight is the largest limit of a tenant's jobs in flight.
	maxInflight = 1_000_000
	// maxTenantsFile is the size of the largest file of tenants, in bytes.
	maxTenantsFile = 4 << 20
)

// Tenants are the limits of tenants, from a file that can be reloaded. It is safe for
// concurrent use, except that only one function of [Tenants.Look] may run at a time.
type Tenants struct {
	path    string
	others  int
	current atomic.Pointer[tenantsFile]
}

// tenantsFile is the content of the file. It is immutable.
type tenantsFile struct {
	digest      string
	Version     int    `yaml:"version"`
	MaxInflight limits `yaml:"max_inflight"`
}

// limits are the limits by tenant.
type limits map[string]int

// UnmarshalYAML takes names and whole numbers as they are written. The library would read
// an absent number as 0, which is no limit, round 1.5 down, and read the name 010 as 8.
func (l *limits) UnmarshalYAML(node ast.Node) error {
	var entries []*ast.MappingValueNode
	switch node := node.(type) {
	case *ast.MappingNode:
		entries = node.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{node}
	default:
		return &yaml.SyntaxError{Message: "max_inflight must have an entry for each tenant", Token: node.GetToken()}
	}
	*l = make(limits, len(entries))
	for _, entry := range entries {
		name, ok := entry.Key.(*ast.StringNode)
		if !ok {
			return &yaml.SyntaxError{
				Message: fmt.Sprintf("tenant %s must be in quotes, since it is not read as text", entry.Key), Token: entry.Key.GetToken(),
			}
		}
		written := entry.Value.GetToken().Value
		limit, err := strconv.Atoi(written)
		if err != nil || strconv.Itoa(limit) != written || limit < 0 || limit > maxInflight {
			return &yaml.SyntaxError{Token: entry.Value.GetToken(), Message: fmt.Sprintf(
				"max_inflight of tenant %q is %q and must be a whole number from 0, which is no limit, to %d",
				name.Value, written, maxInflight)}
		}
		(*l)[name.Value] = limit
	}
	return nil
}

// OpenTenants reads the file that the configuration names. A tenant that it does not
// name has the limit of all; without a file each has. The error names file and line.
func (c *Config) OpenTenants() (*Tenants, error) {
	t := &Tenants{path: c.TenantsFile, others: c.MaxInflight}
	if t.current.Store(&tenantsFile{}); t.path == "" {
		return t, nil
	}
	_, load := t.Look()
	if _, err := load(); err != nil {
		return nil, fmt.Errorf("LUCIUS_TENANTS_FILE: %w", err)
	}
	return t, nil
}

// MaxInflight returns the most jobs that the tenant may have in flight, 0 for no limit.
func (t *Tenants) MaxInflight(tenantID string) int {
	if limit, named := t.current.Load().MaxInflight[tenantID]; named {
		return limit
	}
	return t.others
}

// Look reads the file for a watcher: it returns a hash of the content, and a function
// that puts the content into use, or returns an error and changes nothing.
func (t *Tenants) Look() (string, func() ([]any, error)) {
	content := strictyaml.Open(t.path, maxTenantsFile)
	digest := strictyaml.Digest(content)
	return digest, func() ([]any, error) {
		if content.Err != nil {
			return nil, content.Err
		}
		read := &tenantsFile{digest: digest}
		fault := strictyaml.Decode(content.Text, read, nil)
		if fault == nil {
			fault = read.check()
		}
		if fault != nil {
			fault.File = t.path
			return nil, fault
		}
		t.current.Store(read)
		return []any{"tenants", len(read.MaxInflight)}, nil
	}
}

// check returns the first fault of the content.
func (f *tenantsFile) check() *strictyaml.Error {
	if f.Version != 1 {
		return &strictyaml.Error{Message: fmt.Sprintf("version is %d and must be 1", f.Version)}
	}
	return nil
}

// InUse returns the hash of the content in use.
func (t *Tenants) InUse() string { return t.current.Load().digest }
