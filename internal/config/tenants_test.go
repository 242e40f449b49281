package config_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/musttest"
)

// tenantsFile writes a file of tenants and returns its path.
func tenantsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	musttest.WriteFile(t, path, text)
	return path
}

func TestOpenTenants_NamesTheFault(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                            "tenants.yaml: is empty",
		"max_inflight: {a: 1}\n":                      "tenants.yaml: version is 0 and must be 1",
		"version: 1\nlimits: {}\n":                    `tenants.yaml:2: unknown field "limits"`,
		"version: 1\nmax_inflight: {a: many}\n":       `tenants.yaml:2: max_inflight of tenant "a" is "many" and must be a whole number`,
		"version: 1\nmax_inflight: {a: 1.5}\n":        `max_inflight of tenant "a" is "1.5"`,
		"version: 1\nmax_inflight: {a: 010}\n":        `max_inflight of tenant "a" is "010"`,
		"version: 1\nmax_inflight: {a: null}\n":       `max_inflight of tenant "a" is "null"`,
		"version: 1\nmax_inflight:\n  a:\n":           `max_inflight of tenant "a" is`,
		"version: 1\nmax_inflight:\n  010: 2\n":       "tenants.yaml:3: max_inflight.010: tenant 010 must be in quotes",
		"version: 1\nmax_inflight: 3\n":               "tenants.yaml:2: max_inflight must have an entry for each tenant",
		"version: 1\nmax_inflight: {a: -1}\n":         `max_inflight of tenant "a" is "-1"`,
		"version: 1\nmax_inflight:\n  a: 1\n  a: 2\n": "tenants.yaml:4: is not valid YAML",
	} {
		c := config.Config{TenantsFile: tenantsFile(t, text)}
		if _, err := c.OpenTenants(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "LUCIUS_TENANTS_FILE") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	missing := config.Config{TenantsFile: filepath.Join(t.TempDir(), "none.yaml")}
	if _, err := missing.OpenTenants(); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("a missing file: %v", err)
	}
}

// A tenant in the file has its own limit, and all others have the configured one. A new
// version of the file is used as a whole or not at all.
func TestTenants_Reload(t *testing.T) {
	t.Parallel()
	c := config.Config{MaxInflight: 7, TenantsFile: tenantsFile(t, "version: 1\nmax_inflight: {a: 2, b: 0}\n")}
	tenants, err := c.OpenTenants()
	musttest.NoError(t, err)
	expect := func(when string, want map[string]int) {
		t.Helper()
		for tenant, limit := range want {
			if got := tenants.MaxInflight(tenant); got != limit {
				t.Errorf("%s: tenant %s has the limit %d, want %d", when, tenant, got, limit)
			}
		}
	}
	before := map[string]int{"a": 2, "b": 0, "c": 7}
	expect("at the start", before)
	for text, want := range map[string]map[string]int{
		"version: 1\nmax_inflight: {a: -5, c: 1}\n": before,
		"version: 1\nmax_inflight: {a: 3}\n":        {"a": 3, "b": 7, "c": 7},
	} {
		musttest.WriteFile(t, c.TenantsFile, "version: 1\nmax_inflight: {a: 2, b: 0}\n")
		_, load := tenants.Look()
		if _, err := load(); err != nil {
			t.Fatal(err)
		}
		musttest.WriteFile(t, c.TenantsFile, text)
		digest, load := tenants.Look()
		_, err := load()
		if refused := err != nil; refused == (tenants.InUse() == digest) {
			t.Errorf("%q: %v, and in use: %t", text, err, tenants.InUse() == digest)
		}
		expect(text, want)
	}
	none := config.Config{MaxInflight: 3}
	if tenants, err = none.OpenTenants(); err != nil {
		t.Fatal(err)
	}
	expect("without a file", map[string]int{"a": 3})
}
