package callbacks_test

import "testing"

// TestTableLayout has what holds in the layout "ledger" hold in the layout "table".
func TestTableLayout(t *testing.T) { //nolint:paralleltest // Each of them says it for itself.
	for name, test := range map[string]func(*testing.T){
		"Service_AWorkerReports":         TestService_AWorkerReports,
		"Service_RefusalsHaveTheirCodes": TestService_RefusalsHaveTheirCodes,
	} {
		t.Run(name, test)
	}
}
