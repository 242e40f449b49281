//go:build integration

package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
)

// onAccount starts an empty account, and adds the variables of a server on it.
func onAccount(t *testing.T, variables map[string]string, backend string) {
	t.Helper()
	account, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(account.Stop)
	variables["LUCIUS_STORAGE_BACKEND"], variables["LUCIUS_TABLE_CONNECTION"] = backend, account.ConnectionString()
}

// Provisioning creates what a check reports as missing: tables, and topics with a
// subscription for each service of the protocols.
func TestAzure_ProvisionsWhatCheckMisses(t *testing.T) {
	t.Parallel()
	peer, variables := newManaged(t)
	onAccount(t, variables, config.BackendTable)

	if out, code := auditIn(t, variables); code != cli.ExitUsage || !strings.Contains(out, "no server has used these tables") {
		t.Errorf("the audit of an empty account ends with %d: %s", code, out)
	}
	expectAzure(t, variables, "check", cli.ExitFailed, // The audit has created nothing.
		"wrong: table luciussteps: the table is missing; provision creates it\n", "tables: 9 checked, 9 wrong\n",
		"wrong: global-bus-p1: the topic is missing; provision creates it\n", "topics: 4 checked, 4 wrong\n",
		"13 findings to fix",
	)
	busy := 2 // changes are refused at first, as if other changes were in progress
	peer.SetHooks(fakeservicebus.Hooks{OnManage: func(method, _ string) int {
		if method != http.MethodPut || busy == 0 {
			return 0
		}
		busy--
		return http.StatusConflict
	}})
	expectAzure(t, variables, "provision", 0,
		"created: table luciussteps\n", "ok: table luciussteps\n",
		"created: global-bus-p0\n", "created: global-bus-p0/extract\n", "created: global-bus-replies-p1/lucius-invoker\n",
		"tables: 9 checked, 0 wrong\n", "topics: 4 checked, 0 wrong\n",
	)
	if out := expectAzure(t, variables, "check", 0, "ok: table luciusqueue\n"); strings.Count(out, "\n") != 9+2 {
		t.Errorf("the second check says:\n%s", out)
	}
	if out := expectAzure(t, variables, "provision", 0); strings.Contains(out, "created") {
		t.Errorf("provisioning again says:\n%s", out)
	}
}

// The tables are checked even if the namespace cannot be, and the other way round.
func TestAzure_ChecksTablesInAnyCase(t *testing.T) {
	t.Parallel()
	peer, variables := newManaged(t)
	onAccount(t, variables, config.BackendLedger)
	peer.SetHooks(fakeservicebus.Hooks{OnManage: func(string, string) int { return http.StatusNotFound }})
	variables["LUCIUS_SERVICEBUS_TOPIC_PREFIX"] = "nowhere"
	expectAzure(t, variables, "provision", cli.ExitUsage,
		"created: table luciusledger\n", "tables: 6 checked, 0 wrong\n", "create topic nowhere0: the namespace answers 404")
}
