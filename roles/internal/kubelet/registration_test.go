package kubelet

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// notify tells the plugin what kubelet tells it once it is registered.
func notify(t *testing.T, cfg Config) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(cfg.RegistrarDir, cfg.Driver+"-reg.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := registerpb.NewRegistrationClient(conn).NotifyRegistrationStatus(ctx, &registerpb.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
}
