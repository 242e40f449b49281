//go:build !race

package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// remotePackages are the drivers of services outside of the process, and what only they need.
var remotePackages = regexp.MustCompile(`Azure/|/jackc/|coder/websocket|/lucius/pkg/(servicebus|inbox/pginbox|pgsession|projections|tablestore/(aztablestore|pacer|pgstore))`)

// A program that is built with the tag nodrivers contains no driver of a service outside of the
// process, and says so when a setting asks for one.
func TestNoDrivers(t *testing.T) {
	t.Parallel()
	packages := func(args ...string) []string {
		out, err := exec.CommandContext(t.Context(), "go", append(append([]string{"list"}, args...), "-deps", ".")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return remotePackages.FindAllString(string(out), -1)
	}
	if len(packages()) == 0 {
		t.Error("the pattern finds no package in a program with the drivers")
	}
	if found := packages("-tags", "nodrivers"); len(found) > 0 {
		t.Errorf("the program contains packages with %q", found)
	}
	binary, err := build("nodrivers")
	if err != nil {
		t.Fatal(err)
	}
	const without = ", but this program was built with the tag nodrivers, without PostgreSQL, Azure Table Storage and Service Bus: " +
		"use a program that was built without the tag"
	for _, tt := range []struct {
		command  string
		settings []string
		want     string
	}{
		{"serve", []string{"LUCIUS_BUS=servicebus", "LUCIUS_SERVICEBUS_NAMESPACE=n"}, "LUCIUS_BUS is servicebus" + without},
		{"serve", []string{"LUCIUS_STORAGE_BACKEND=postgres", "LUCIUS_POSTGRES_URL=u"}, "LUCIUS_STORAGE_BACKEND is postgres" + without},
		{"serve", []string{"LUCIUS_STORAGE_BACKEND=table", "LUCIUS_TABLE_ENDPOINT=e"}, "LUCIUS_STORAGE_BACKEND is table" + without},
		{"audit", []string{"LUCIUS_STORAGE_BACKEND=ledger", "LUCIUS_TABLE_ENDPOINT=e"}, "LUCIUS_STORAGE_BACKEND is ledger" + without},
		{"postgres", nil, `lucius has no command "postgres"`},
		{"demo", nil, ""},
	} {
		cmd := exec.CommandContext(t.Context(), binary, tt.command)
		cmd.Dir, cmd.Env = t.TempDir(), tt.settings // The demo writes a folder.
		out, err := cmd.CombinedOutput()
		if (err != nil) != (tt.want != "") || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s with %q: %v, %s, want %q", tt.command, tt.settings, err, out, tt.want)
		}
	}
}
