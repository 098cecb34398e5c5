package e2e

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Where the installation has the plugin.
const (
	pluginNamespace = "nvdra"
	pluginAccount   = "nvidia-dra-driver-kubeletplugin"
)

// pluginToken makes the Pod that a plugin process stands for, and a token as
// kubelet would put it there: bound to the pod, and so to its node.
func (a *apiServer) pluginToken(ctx context.Context, node *corev1.Node, podName string) (token string, pod types.UID, err error) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName, Namespace: pluginNamespace},
		Spec: corev1.PodSpec{
			NodeName: node.Name, ServiceAccountName: pluginAccount,
			Containers: []corev1.Container{{Name: "gpus", Image: "localhost/nvdra:dev"}},
		},
	}
	if p, err = a.kube.CoreV1().Pods(pluginNamespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return "", "", fmt.Errorf("make pod of the plugin: %w", err)
	}
	hour := int64(3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &hour,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
	}}
	answer, err := a.kube.CoreV1().ServiceAccounts(pluginNamespace).CreateToken(ctx, pluginAccount, request, metav1.CreateOptions{})
	if err != nil {
		return "", "", fmt.Errorf("make token of the plugin: %w", err)
	}
	return answer.Status.Token, p.UID, nil
}

// writeKubeconfig writes how whoever has the token reaches the API server at
// an address that leads to it.
func (a *apiServer) writeKubeconfig(file, address, token string) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["test"] = &clientcmdapi.Cluster{Server: "https://" + address, CertificateAuthorityData: a.ca}
	c.AuthInfos["plugin"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "plugin"}
	c.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
