package callbacks_test

import "testing"

// TestTableLayout runs tests of the layout "ledger" in the layout "table".
func TestTableLayout(t *testing.T) { //nolint:paralleltest // Each of them calls t.Parallel.
	for name, test := range map[string]func(*testing.T){
		"Service_AWorkerReports":         TestService_AWorkerReports,
		"Service_RefusalsHaveTheirCodes": TestService_RefusalsHaveTheirCodes,
	} {
		t.Run(name, test)
	}
}
